"""The real parts together: Kafka broker, LMDB stores, service processes, Spark."""
