-- The records as they are: what Kafka calls a record is a row, and its place in the topic stays with it.
SELECT key, value, topic, partition, offset, timestamp
FROM records
