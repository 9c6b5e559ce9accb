"""Global warming until 2100 under the four RCP scenarios, with its uncertainty.

    scalable run scalable.yaml --target local --workflow workflow.py
    python workflow.py --draws 100

The first one reports what the run took; `-- --draws 100` at its end passes arguments on.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

# Modules that lie beside the workflow, as these two do, are found by the workers, too.
import impacts
import model
import numpy as np

from scalable import File, ScalableSession

HERE = Path(__file__).resolve().parent
SCENARIOS = HERE / "scenarios"
MEMBERS_PER_CALL = 10  # about 0.4 s of work: long against the cost of a call, short against the run


def main() -> None:
    """Run the ensemble, and say what came out."""
    arguments = parse_arguments()
    # Workers may have another working directory.
    directory = str(arguments.output.resolve())

    # Every scenario meets the same climates, so that only the emissions make a difference.
    parameters = model.draw_parameters(arguments.draws, arguments.seed)
    batches = np.array_split(parameters, -(-arguments.draws // MEMBERS_PER_CALL))

    # 1. A session brings up the pools of the manifest: here on this machine, or as jobs of Slurm
    #    when the target says so. Nothing below knows which.
    manifest = os.environ.get("SCALABLE_MANIFEST") or HERE / "scalable.yaml"
    session = ScalableSession.from_yaml(manifest)
    with session:
        client = session.client
        summaries = {}
        for path in sorted(SCENARIOS.glob("*.toml")):
            scenario, _ = model.read_scenario(path)
            # 2. `tag` is the component whose workers do the work, `task` the name under which the
            #    manifest expects it and the report shows it. Each call returns a future at once.
            #    A call that ran before, with the same content of the `File`, does not run again.
            runs = [
                client.submit(model.run_batch, File(path), batch, tag="climate", task="simulate")
                for batch in batches
            ]
            # 3. Futures are arguments of further calls, also of another component. Results travel
            #    from worker to worker when they are there, without passing through this script.
            summaries[scenario] = client.submit(
                impacts.percentiles, runs, tag="impacts", task="summarize"
            )
        written = client.submit(
            impacts.write_results, summaries, model.YEARS, directory, tag="impacts", task="write"
        )

        # 4. Only here does the script wait. A failure of any call above would be raised here.
        results = written.result()

        # 5. The record of the run says what it made.
        session.record_artifact(results["csv"], kind="table", draws=arguments.draws)
        session.record_artifact(results["png"], kind="plot", draws=arguments.draws)

    print_headline(results["headline"])
    print(f"\nResults: {results['csv']}\n         {results['png']}")


def print_headline(rows: list[tuple[str, float, float, float]]) -> None:
    """Print the warming in the last year, a line for each scenario."""
    print(f"Warming in {model.LAST_YEAR} since {model.FIRST_YEAR}\n")
    print("scenario    median    5 to 95 %")
    for scenario, low, median, high in rows:
        print(f"{scenario:<10}{median:6.2f} K    {low:.2f} to {high:.2f} K")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Warming until 2100 under the RCP scenarios.")
    parser.add_argument("--draws", type=at_least_one, default=60, help="members per scenario")
    parser.add_argument("--seed", type=int, default=2018, help="seed of the draws")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("climate-ensemble-results"),
        metavar="DIR",
        help="where the results go (default: %(default)s)",
    )
    return parser.parse_args()


def at_least_one(text: str) -> int:
    """Read a number of members."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    main()
