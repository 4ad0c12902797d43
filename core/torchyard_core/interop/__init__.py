"""Other systems' documents, read into topologies and written from them: one file a format, each with `read` and/or
`write`. `formats` lists them."""
