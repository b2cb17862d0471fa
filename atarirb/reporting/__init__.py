"""What a report on a dataset is made of.

counts      what values a column has, and how often
summary     the episodes chosen to be shown, and their returns and lengths in bins
charts      small charts as SVG
timeline    shards, holes and cuts on a line
pictures    frames as images in the page, of a bounded size
page        the page, of these
page.css, player.js    its look, and what steps through an episode
"""
