"""One model's life: when it starts, how it ends, what its end teaches, who goes for whom."""
