"""Named benchmarks with JSON results: `make bench`, or `python -m benchmarks NAME ...`."""
