"""What goes on PYTHONPATH of the processes of a host whose clock is to be wrong, and nothing else."""
