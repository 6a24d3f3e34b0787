"""Units of measure by name: what each measures, and how many base units it is."""

from fractions import Fraction

UNITS: tuple[tuple[dict[str, int], dict[str, int | str]], ...] = (
    ({"m": 1}, {
        "m meter meters metre metres": 1, "mm millimeter millimeters millimetre millimetres": "1/1000",
        "cm centimeter centimeters centimetre centimetres": "1/100",
        "km kilometer kilometers kilometre kilometres kms": 1000, "nm nanometer nanometers": "1/1000000000",
        "micron microns micrometer micrometers µm": "1/1000000", "inch inches in ins": "254/10000",
        "foot feet ft": "3048/10000", "yard yards yd yds": "9144/10000",
        "mile miles mi": "1609344/1000", "pc parsec parsecs": "30856775814913673", "AU au": "149597870700",
    }),
    ({"s": 1}, {
        "s sec secs second seconds": 1, "ms millisecond milliseconds": "1/1000", "minute minutes min mins": 60,
        "hour hours hr hrs h": 3600, "day days": 86400, "week weeks wk": 604800, "month months": 2629746,
        "year years yr yrs": 31556952,
    }),
    ({"kg": 1}, {
        "kg kilogram kilograms kgs": 1, "g gram grams gm": "1/1000", "mg milligram milligrams": "1/1000000",
        "pound pounds lb lbs": "45359237/100000000", "ounce ounces oz": "45359237/1600000000",
        "ton tons tonne tonnes": 1000,
    }),
    ({"m": 3}, {
        "liter liters litre litres L l": "1/1000", "mL ml milliliter milliliters": "1/1000000",
        "gallon gallons gal": "3785411784/1000000000000",
    }),
    ({"a.m.": 1}, {"am AM": 1}),
    ({"p.m.": 1}, {"pm PM": 1}),
    ({"$": 1}, {"$ dollar dollars USD usd bucks": 1, "cent cents": "1/100"}),
    ({"€": 1}, {"€ euro euros EUR": 1}),
    ({"%": 1}, {"% percent pct percentage": "1/100"}),
    ({"degree": 1}, {"degree degrees deg": 1}),
    ({"radian": 1}, {"radian radians rad": 1}),
    ({"m": 1, "s": -1}, {"mph": "44704/100000", "kph kmh kmph": "1000/3600"}),
    ({"kg": 1, "m": 1, "s": -2}, {"N newton newtons": 1, "dyn dyne dynes": "1/100000"}),
    ({"kg": 1, "m": 2, "s": -2}, {"J joule joules": 1, "kJ": 1000, "erg ergs": "1/10000000"}),
    ({"kg": 1, "m": 2, "s": -3}, {"W watt watts": 1, "kW": 1000, "MW": 1000000}),
    ({"eV": 1}, {"eV": 1, "keV": 1000, "MeV": 1000000}),
    ({"K": 1}, {"K kelvin kelvins": 1}),
    ({"s": -1}, {"Hz hertz": 1, "kHz": 1000, "MHz": 1000000}),
    ({"mol": 1}, {"mol mole moles mols": 1}),
    ({"V": 1}, {"V volt volts": 1}),
    ({"A": 1}, {"A amp amps ampere amperes": 1}),
)  # fmt: skip
"""Base units, and the units that measure the same: spellings, with spaces between, and how many base units each is."""
_WORDS: tuple[tuple[dict[str, int], dict[str, int | str]], ...] = (
    ({"m": 1}, {
        "mètre mètres metro metros metri метр метра метров м 米": 1,
        "centimètre centimètres centímetro centímetros centimetro centimetri zentimeter сантиметр сантиметра "
        "сантиметров см 厘米 公分": "1/100",
        "kilomètre kilomètres kilómetro kilómetros quilômetro quilômetros chilometro chilometri километр километра "
        "километров км 千米 公里": 1000,
        "millimètre millimètres milímetro milímetros millimetro millimetri мм 毫米": "1/1000",
        "dm decimeter decimeters decimetre decimetres дм 分米": "1/10", "μm": "1/1000000",
        "Å angstrom angstroms": "1/10000000000",
    }),
    ({"s": 1}, {
        "seconde secondes segundo segundos secondo secondi sekunde sekunden секунда секунды секунд с 秒 초": 1,
        "minuto minutos minuti minuten минута минуты минут мин 分钟 분": 60,
        "heure heures hora horas ora ore stunde stunden час часа часов ч 小时 시간": 3600,
        "jour jours día días dia dias giorno giorni tag tage tagen день дня дней 天 일": 86400, "ns": "1/1000000000",
        "µs μs microsecond microseconds": "1/1000000",
        "an ans année années año años ano anos anno anni jahr jahre jahren год года лет 年": 31556952,
    }),
    ({"kg": 1}, {
        "kilogramme kilogrammes kilogramo kilogramos quilograma quilogramas chilogrammo chilogrammi kilogramm кг "
        "千克 公斤": 1,
        "gramme grammes gramo gramos grama gramas grammo grammi gramm г 克": "1/1000",
        "µg μg microgram micrograms": "1/1000000000", "吨": 1000,
    }),
    ({"m": 3}, {"litro litros litri л 升": "1/1000", "cl": "1/100000", "dl": "1/10000", "毫升": "1/1000000"}),
    ({"m": 2}, {"平方米": 1, "平方厘米": "1/10000", "平方千米": 1000000, "hectare hectares ha": 10000}),
    ({"m": 3}, {"立方米": 1, "立方厘米": "1/1000000"}),
    ({"degree": 1}, {"degré degrés grado grados grau graus gradi grad градус градуса градусов 度": 1}),
    ({"rupee": 1}, {"Rs rs INR ₹ rupee rupees": 1, "paise paisa": "1/100"}),
    ({"$": 1}, {"美元 달러": 1}),
    ({"£": 1}, {"£ GBP": 1, "pence": "1/100"}),
    ({"yuan": 1}, {"yuan RMB rmb CNY 元": 1}),
    ({"¥": 1}, {"¥ yen JPY 円": 1}),
    ({"rouble": 1}, {"rouble roubles ruble rubles рубль рубля рублей руб": 1}),
    ({"Ω": 1}, {"Ω Ω ohm ohms": 1, "kΩ kΩ kilohm kilohms": 1000, "MΩ MΩ megohm megohms": 1000000}),
    ({"F": 1}, {"farad farads": 1, "µF μF microfarad microfarads": "1/1000000", "nF": "1/1000000000"}),
    ({"C": 1}, {"coulomb coulombs": 1, "µC μC": "1/1000000"}),
    ({"T": 1}, {"tesla teslas": 1}),
    ({"kg": 1, "m": -1, "s": -2}, {"Pa pascal pascals": 1, "kPa": 1000, "MPa": 1000000, "atm": 101325}),
    ({"kg": 1, "m": 1, "s": -2}, {"kN": 1000, "mN": "1/1000"}),
    ({"kg": 1, "m": 2, "s": -2}, {"cal calorie calories": "4184/1000", "kcal": 4184, "MJ": 1000000, "kWh": 3600000}),
    ({"V": 1}, {"mV": "1/1000", "kV": 1000, "µV μV": "1/1000000"}),
    ({"A": 1}, {"mA": "1/1000", "µA μA": "1/1000000"}),
    ({"person": 1}, {"person persons people 人 명": 1}),
    ({"piece": 1}, {"piece pieces 个 個 本 块 개": 1}),
    ({"year of age": 1}, {"岁 歲 歳 세 살": 1}),
    ({"CHF": 1}, {"CHF": 1}), ({"CAD": 1}, {"CAD": 1}), ({"AUD": 1}, {"AUD": 1}),
    ({"won": 1}, {"won 원": 1}), ({"Kč": 1}, {"Kč CZK koruna koruny korun": 1}),
    ({"zł": 1}, {"zł PLN złoty złote złotych": 1}),
    ({"thing": 1}, {
        "яблоко яблока яблок студент студента студентов ученик ученика учеников книга книги книг штука штуки штук "
        "раз раза": 1,
    }),
    ({"次": 1}, {"次": 1}), ({"种": 1}, {"种 種": 1}), ({"张": 1}, {"张 張": 1}), ({"分": 1}, {"分": 1}),
    ({"bit": 1}, {"bit bits": 1, "byte bytes": 8}),
)  # fmt: skip
"""The same for names that are units among words alone, and not in a formula, where ``cd`` is a product."""


def _by_spelling(
    rows: tuple[tuple[dict[str, int], dict[str, int | str]], ...],
) -> dict[str, tuple[dict[str, int], Fraction]]:
    return {
        spelling: (base, Fraction(factor))
        for base, factors in rows
        for spellings, factor in factors.items()
        for spelling in spellings.split()
    }


IN_FORMULAS = _by_spelling(UNITS)
TABLE = {**_by_spelling(_WORDS), **IN_FORMULAS}
"""Base units and the factor of every spelling."""
