"""The `climate` component: the FaIR simple climate model on the RCP emissions.

FaIR 1.6.4 brings its input along: the emissions of the four Representative Concentration Pathways,
and natural emissions, solar and volcanic forcing. What is uncertain here is how strongly the
climate responds, which two numbers say: the transient climate response (TCR, warming at the moment
when CO2 has doubled) and the equilibrium climate sensitivity (ECS, warming in the long run).
"""

import os
import tomllib
import warnings
from pathlib import Path

import numpy as np
from fair.ancil import cmip6_solar, cmip6_volcanic, natural
from fair.forward import fair_scm
from fair.RCPs import rcp26, rcp45, rcp60, rcp85

PATHWAYS = {
    "rcp26": rcp26.Emissions.emissions,
    "rcp45": rcp45.Emissions.emissions,
    "rcp60": rcp60.Emissions.emissions,
    "rcp85": rcp85.Emissions.emissions,
}
YEAR, FOSSIL_CO2 = 0, 1  # columns of a pathway
FIRST_YEAR = 1765
LAST_YEAR = 2100  # the pathways go on to 2500
YEARS = np.arange(FIRST_YEAR, LAST_YEAR + 1)

# fair.forcing.ozone_tr.stevenson returns an array of length one, which fair_scm assigns to a single
# element in each time step. NumPy before 2.4 takes that with this warning, later ones refuse it.
warnings.filterwarnings(
    "ignore",
    message="Conversion of an array with ndim > 0 to a scalar",
    category=DeprecationWarning,
    module=r"fair\.forward",
)


def draw_parameters(draws: int, seed: int) -> np.ndarray:
    """Draw pairs of TCR and ECS.

    They come from the joint lognormal distribution that FaIR fits to the TCR and ECS of 23 CMIP5
    models (Forster et al. 2013, doi:10.1002/jgrd.50174), without pairs where ECS is below TCR.

    Returns
    -------
    ndarray of shape (draws, 2)
        TCR and ECS in K; the same ones for the same number of draws and seed.
    """
    from fair.tools.ensemble import tcrecs_generate  # brings scipy.stats, which workers do not need

    return tcrecs_generate("cmip5", dist="lognorm", n=draws, correlated=True, seed=seed)


def read_scenario(path: str | os.PathLike[str]) -> tuple[str, np.ndarray]:
    """Read the file of a scenario.

    Returns
    -------
    str
        Its name.
    ndarray of shape (years, 40)
        Its emissions, as FaIR takes them.
    """
    scenario = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    emissions = PATHWAYS[scenario["pathway"]].copy()
    change = scenario["fossil_co2"]
    emissions[emissions[:, YEAR] >= change["from"], FOSSIL_CO2] *= change["factor"]
    return scenario["name"], emissions


def warming(emissions: np.ndarray, tcr: float, ecs: float) -> np.ndarray:
    """Run FaIR once.

    Returns
    -------
    ndarray of shape (years,)
        Global mean surface warming in K since 1765, in each of YEARS.
    """
    # FaIR steps forward from year to year: without the years after 2100 it gives the same results
    # in half the time.
    years = slice(len(YEARS))
    _, _, temperature = fair_scm(
        emissions=emissions[years],
        natural=natural.Emissions.emissions[years],
        F_solar=cmip6_solar.Forcing.solar[years],
        F_volcanic=cmip6_volcanic.Forcing.volcanic[years],
        tcrecs=np.array([tcr, ecs]),
    )
    return temperature


def run_batch(scenario: str | os.PathLike[str], parameters: np.ndarray) -> np.ndarray:
    """Run FaIR for some pairs of TCR and ECS: one call on a `climate` worker.

    Parameters
    ----------
    scenario
        File of the scenario.
    parameters
        Array of shape (pairs, 2): TCR and ECS in K.

    Returns
    -------
    ndarray of shape (pairs, years)
        Warming in K since 1765.
    """
    _, emissions = read_scenario(scenario)
    return np.stack([warming(emissions, tcr, ecs) for tcr, ecs in parameters])
