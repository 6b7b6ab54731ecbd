"""The status page of both services: one page that shows what each says of itself."""
