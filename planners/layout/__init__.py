"""What placement is made of: what is asked, the room there is, where layers go, and why."""
