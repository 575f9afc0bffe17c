"""What runs on the GPU machine: these files are copied into the kit, and need no other of the project."""
