"""Names and places, all of them made up."""

from __future__ import annotations

__all__ = ["BRANDS", "CITIES", "COUNTRY", "FIRST_NAMES", "LAST_NAMES", "STREETS", "UNITS"]

FIRST_NAMES = (
    "Aldric", "Brisa", "Caspian", "Delwyn", "Elowen", "Faron", "Gisla", "Halvar", "Iselin", "Jorun", "Kerensa", "Lorcan",
    "Maristel", "Nevin", "Orla", "Perrin", "Quilla", "Roswin", "Sunniva", "Tamsin", "Ulric", "Verity", "Wystan", "Xanthe",
    "Ysolde", "Zephan", "Anwen", "Bertil", "Corisande", "Dagny", "Emrik", "Fenna", "Gwyddon", "Hesper", "Ivar", "Jessamy",
)  # fmt: skip
LAST_NAMES = (
    "Ashgrove", "Birkett", "Corrowe", "Dunmarsh", "Elderfen", "Fairholt", "Greywell", "Harrowby", "Inglethorpe", "Jellicot",
    "Kestermoor", "Lindqvale", "Marrowby", "Netherby", "Oxcombe", "Pellworth", "Quenby", "Ravensett", "Stallbrook",
    "Thornwick", "Underhay", "Vandermoor", "Westering", "Yarrowden", "Zellander", "Averill", "Brackwater", "Coldbeck",
    "Dovemere", "Eastlake", "Fernsby", "Gadwell",
)  # fmt: skip
COUNTRY = "Verland"
CITIES = (
    ("Eastmere", "HV", "204"), ("Port Calder", "HV", "207"), ("Tarnbrook", "NM", "311"), ("Ollerdale", "NM", "315"),
    ("Vexholm", "SK", "428"), ("Saltmarsh Bay", "SK", "421"), ("Hollin Cross", "WD", "533"), ("Merrowford", "WD", "536"),
    ("Quarrington", "EL", "617"), ("Low Fennick", "EL", "612"), ("Cairnhaven", "TH", "744"), ("Birchwater", "TH", "749"),
    ("Stonegarth", "KV", "856"), ("Upper Linden", "KV", "851"),
)  # fmt: skip
"""Each with its state and how its zip codes begin."""
STREETS = (
    "Tallow Street", "Ferry Lane", "Copperbeech Road", "Millrace Walk", "Gannet Row", "Old Kiln Road", "Sorrel Close",
    "Weir Bank", "Lantern Street", "Hazel Rise", "Quay Parade", "Brewhouse Yard", "Thistle Avenue", "Chandler's Way",
    "Rookery Drive", "Saddlers Court", "Pumphouse Lane", "Larkfield Road",
)  # fmt: skip
UNITS = ("Flat", "Unit", "Floor")
BRANDS = ("Meridian", "Corvus", "Halcyon")
"""Who issues credit cards."""
