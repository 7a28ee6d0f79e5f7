"""The coordinator as a process: control loop, threads that wait for Kafka or a disk, drivers as child
processes.

The control loop owns the leader; everybody else asks it. Imported by `coordinator.__main__`, which wires it,
and `coordinator.http`.
"""
