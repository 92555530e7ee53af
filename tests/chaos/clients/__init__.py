"""The SDK clients that work while the containers suffer, each a process or a part of one."""
