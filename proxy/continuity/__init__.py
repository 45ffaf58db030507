"""A reply that goes on after its child is gone: two streams made one."""
