"""What each choice of a policy of both tiers leads to."""
