"""Messages between processes: between server, agents and clients. They import nothing of ours."""
