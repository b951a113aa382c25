"""What a plan runs on: devices, links, hosts, and the times of collectives between them."""
