"""What half an hour of mixed load leaves behind, and if the last minutes are as quick as the first: `make soak`."""
