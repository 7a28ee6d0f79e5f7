"""The coordinator as a process: control loop, threads that wait for Kafka or a disk, drivers as child
processes.

The control loop owns the leader; everybody else asks it.
"""
