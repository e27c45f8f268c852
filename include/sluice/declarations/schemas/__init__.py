"""Schema files and the columns that they describe: Avro, JSON Schema, Iceberg, Protobuf."""
