"""The event contract as documents, made from the types and the streams: AsyncAPI 3 and JSON Schema."""
