"""The REST interface on aiohttp: routes by noun, one error shape. No rule of the domain lives here."""
