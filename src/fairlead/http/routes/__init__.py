"""The handlers of all operations, in a file for each noun. `fairlead.http.application` imports all of them."""
