"""The evaluation of AlpaComm in simulation; nothing here is measured."""
