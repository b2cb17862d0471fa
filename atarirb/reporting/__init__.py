"""What a report on a dataset is made of.

page        the page, and its first section, the facts
returns, histograms, timeline, players, stacks    the other sections
summary     the episodes chosen to be shown, and their returns and lengths in bins
counts      what values a column has, and how often
pictures    frames as images in the page, of a bounded size
charts      small charts as SVG
pieces      what several sections have
page.css, player.js    the look, and what steps through an episode
"""
