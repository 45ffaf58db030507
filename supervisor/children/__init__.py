"""One child from exec to reaped: its process, its words, its progress."""
