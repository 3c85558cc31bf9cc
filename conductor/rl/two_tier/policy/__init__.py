"""One policy for both tiers: it orders a rank's actions and says who lends how much."""
