"""How linear networks learn under joint-embedding objectives: vector fields, closed forms and discretisations, in float64."""
