"""The way in and out: sockets, clients, who may come in, and how the service ends."""
