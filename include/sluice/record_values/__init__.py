"""How the values of records are read: Avro, Protobuf and framed JSON, and the schemas that a registry keeps."""
