"""DyNet beside us: the same models, cells and measurements in its own words."""
