"""Records in Avro and Protobuf as JSON text, for the decoder that all streams have."""
