"""What the shop sells: every product with its options, what it costs, and how dear each choice is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PRODUCTS", "Kind"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A product as it is designed, before its variants are drawn."""

    name: str
    price: int
    """What its plainest variant costs, in whole units of the shop's money."""
    options: dict[str, tuple[str, ...]]
    """The choices by option, the cheapest first."""


_COLOURS = ("grey", "sand", "olive", "rust", "navy")

PRODUCTS = (
    Kind("Ceramic Teapot", 34, {"capacity": ("0.6 l", "1 l", "1.4 l"), "glaze": ("white", "speckled", "cobalt")}),
    Kind("Wool Blanket", 78, {"size": ("single", "double"), "colour": _COLOURS, "weave": ("plain", "herringbone")}),
    Kind("Floor Lamp", 96, {"shade": ("paper", "linen", "glass"), "base": ("steel", "oak"), "dimmer": ("no", "yes")}),
    Kind("Cutting Board", 26, {"wood": ("beech", "acacia", "walnut"), "size": ("small", "medium", "large")}),
    Kind("Cast Iron Pan", 48, {"diameter": ("20 cm", "24 cm", "28 cm"), "finish": ("bare", "enamelled")}),
    Kind("Storage Basket", 19, {"material": ("jute", "willow", "felt"), "size": ("small", "medium", "large")}),
    Kind("Door Mat", 17, {"material": ("rubber", "coir"), "pattern": ("plain", "striped", "chequered")}),
    Kind(
        "Curtain Pair",
        64,
        {"length": ("160 cm", "220 cm", "260 cm"), "fabric": ("cotton", "linen"), "lining": ("none", "blackout")},
    ),
    Kind("Bath Towel Set", 42, {"pieces": ("2", "4", "6"), "colour": _COLOURS}),
    Kind(
        "Duvet Cover",
        58,
        {"size": ("single", "double", "king"), "fabric": ("cotton", "flannel", "linen"), "closure": ("buttons", "zip")},
    ),
    Kind("Picture Frame", 15, {"format": ("10x15", "20x30", "30x40"), "material": ("pine", "brass", "oak")}),
    Kind("Candle Holder", 13, {"material": ("glass", "iron", "brass"), "candles": ("1", "3", "5")}),
    Kind(
        "Kitchen Scale",
        29,
        {"limit": ("3 kg", "5 kg", "10 kg"), "power": ("battery", "rechargeable"), "colour": ("white", "black")},
    ),
    Kind(
        "Hand Mixer", 44, {"speeds": ("3", "5", "9"), "colour": ("white", "cream", "red"), "bowl": ("without", "with")}
    ),
    Kind("Toaster", 39, {"slots": ("2", "4"), "finish": ("plastic", "steel", "enamel"), "bun rack": ("no", "yes")}),
    Kind(
        "Rice Cooker", 52, {"capacity": ("1 l", "1.8 l", "3 l"), "pot": ("aluminium", "steel"), "timer": ("no", "yes")}
    ),
    Kind(
        "Blender",
        69,
        {"power": ("500 W", "800 W", "1200 W"), "jug": ("plastic", "glass"), "colour": ("black", "silver")},
    ),
    Kind("Chef Knife", 55, {"blade": ("16 cm", "20 cm", "24 cm"), "handle": ("polymer", "ash", "walnut")}),
    Kind("Spice Rack", 31, {"jars": ("8", "12", "20"), "mount": ("standing", "wall"), "wood": ("bamboo", "beech")}),
    Kind(
        "Bread Bin",
        36,
        {"material": ("steel", "bamboo", "enamel"), "size": ("small", "large"), "lid": ("flip", "roll")},
    ),
    Kind("Laundry Hamper", 33, {"material": ("cotton", "bamboo", "rattan"), "sections": ("1", "2", "3")}),
    Kind(
        "Wall Mirror",
        73,
        {"shape": ("round", "oval", "arched"), "frame": ("none", "black", "brass"), "width": ("40 cm", "60 cm")},
    ),
    Kind("Step Stool", 47, {"steps": ("2", "3"), "material": ("plastic", "steel", "beech"), "folding": ("no", "yes")}),
    Kind("Watering Can", 22, {"capacity": ("3 l", "6 l", "10 l"), "material": ("plastic", "zinc", "copper")}),
    Kind("Plant Pot", 14, {"diameter": ("14 cm", "20 cm", "28 cm"), "material": ("clay", "concrete", "glazed")}),
    Kind(
        "Garden Chair",
        84,
        {"material": ("steel", "teak", "wicker"), "cushion": ("none", "grey", "green"), "folding": ("no", "yes")},
    ),
    Kind(
        "Hammock", 59, {"length": ("2 m", "2.4 m", "3 m"), "fabric": ("nylon", "cotton"), "frame": ("without", "with")}
    ),
    Kind("Bird Feeder", 18, {"material": ("plastic", "cedar", "steel"), "mount": ("hanging", "pole", "window")}),
    Kind("Pruning Shears", 24, {"type": ("bypass", "anvil", "ratchet"), "handle": ("short", "long")}),
    Kind("Compost Bin", 61, {"capacity": ("200 l", "300 l", "400 l"), "material": ("recycled plastic", "larch")}),
    Kind(
        "Wheelbarrow",
        92,
        {"capacity": ("75 l", "100 l", "120 l"), "tray": ("plastic", "galvanised"), "tyre": ("solid", "air")},
    ),
    Kind("Camp Stove", 66, {"burners": ("1", "2"), "fuel": ("gas", "spirit", "multi"), "windshield": ("no", "yes")}),
    Kind("Tent", 189, {"sleeps": ("1", "2", "4"), "season": ("3", "4"), "colour": ("green", "orange", "sand")}),
    Kind(
        "Sleeping Bag",
        112,
        {"comfort": ("10 C", "0 C", "-10 C"), "filling": ("synthetic", "down"), "length": ("regular", "long")},
    ),
    Kind(
        "Trekking Poles", 63, {"material": ("aluminium", "carbon"), "grip": ("foam", "cork"), "folding": ("no", "yes")}
    ),
    Kind(
        "Headlamp",
        27,
        {
            "brightness": ("200 lm", "400 lm", "800 lm"),
            "power": ("battery", "rechargeable"),
            "colour": ("black", "yellow"),
        },
    ),
    Kind(
        "Rain Jacket",
        98,
        {"size": ("S", "M", "L", "XL"), "colour": ("navy", "moss", "amber"), "lining": ("mesh", "fleece")},
    ),
    Kind(
        "Walking Shoes",
        104,
        {"size": ("38", "40", "42", "44"), "upper": ("fabric", "leather"), "colour": ("grey", "brown", "black")},
    ),
    Kind("Wool Socks", 12, {"size": ("36-39", "40-43", "44-47"), "height": ("ankle", "knee"), "pairs": ("1", "3")}),
    Kind(
        "Thermos Flask",
        28,
        {"capacity": ("0.5 l", "0.75 l", "1 l"), "colour": ("steel", "black", "green"), "cup": ("without", "with")},
    ),
    Kind(
        "Cool Box",
        57,
        {"capacity": ("12 l", "24 l", "40 l"), "cooling": ("passive", "electric"), "wheels": ("no", "yes")},
    ),
    Kind(
        "Picnic Rug",
        37,
        {"size": ("130 cm", "180 cm", "220 cm"), "backing": ("none", "waterproof"), "pattern": ("plain", "tartan")},
    ),
    Kind("Desk Organizer", 21, {"material": ("cardboard", "bamboo", "steel"), "drawers": ("0", "2", "4")}),
    Kind(
        "Fountain Pen",
        41,
        {"nib": ("fine", "medium", "broad"), "body": ("resin", "brass"), "filling": ("cartridge", "piston")},
    ),
    Kind(
        "Standing Desk",
        329,
        {"width": ("120 cm", "140 cm", "160 cm"), "top": ("laminate", "oak"), "drive": ("crank", "motor")},
    ),
    Kind(
        "Monitor Stand",
        38,
        {"material": ("plastic", "steel", "walnut"), "drawer": ("without", "with"), "height": ("fixed", "adjustable")},
    ),
    Kind("Paper Shredder", 79, {"sheets": ("6", "10", "15"), "cut": ("strip", "cross"), "bin": ("12 l", "20 l")}),
    Kind(
        "Whiteboard",
        54,
        {"size": ("60x45", "90x60", "120x90"), "surface": ("lacquer", "glass"), "frame": ("aluminium", "oak")},
    ),
    Kind(
        "Board Game",
        32,
        {"theme": ("harbour", "orchard", "expedition"), "players": ("2-4", "2-6"), "edition": ("standard", "deluxe")},
    ),
    Kind(
        "Chess Set",
        46,
        {"board": ("folding", "solid"), "wood": ("beech", "maple", "rosewood"), "size": ("travel", "club")},
    ),
    Kind(
        "Ukulele",
        83,
        {"size": ("soprano", "concert", "tenor"), "top": ("plywood", "mahogany", "koa"), "bag": ("without", "with")},
    ),
    Kind("Watercolour Set", 35, {"colours": ("12", "24", "48"), "form": ("pans", "tubes"), "case": ("card", "tin")}),
    Kind(
        "Yarn Bundle",
        23,
        {"fibre": ("acrylic", "wool", "alpaca"), "weight": ("fine", "worsted", "bulky"), "skeins": ("4", "8")},
    ),
    Kind(
        "Sketchbook", 16, {"format": ("A5", "A4", "A3"), "paper": ("smooth", "grained"), "binding": ("spiral", "sewn")}
    ),
    Kind("Kite", 25, {"shape": ("diamond", "delta", "box"), "lines": ("1", "2"), "colour": ("red", "rainbow")}),
    Kind(
        "Telescope",
        214,
        {"aperture": ("70 mm", "90 mm", "130 mm"), "mount": ("tabletop", "tripod"), "finder": ("dot", "optical")},
    ),
    Kind(
        "Roller Skates",
        88,
        {"size": ("36", "38", "40", "42"), "colour": ("white", "mint", "black"), "wheels": ("indoor", "outdoor")},
    ),
    Kind("Table Tennis Set", 30, {"bats": ("2", "4"), "net": ("without", "with"), "level": ("leisure", "club")}),
)
