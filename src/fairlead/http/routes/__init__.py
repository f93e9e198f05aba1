"""The routes of the API, one file a noun. `fairlead.http.application` connects them."""
