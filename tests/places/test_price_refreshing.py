"""`scripts/refresh_prices.py` asks the providers' own interfaces: HTTP servers of this file."""

import json
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import refresh_prices as script

pytest.importorskip("botocore")
pytest.importorskip("requests")
pytest.importorskip("google.auth")


@contextmanager
def serving(answer):
    """A server that answers every request by ``answer(path, headers, body) -> (status, text)``."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            status, text = answer(self.path, self.headers, body)
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            kind = "text/xml" if text.startswith("<") else "application/json"
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = handle_any

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def product(usd, **attributes):
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd:.10f}"}}
    terms = {"OnDemand": {"X.Y": {"priceDimensions": {"X.Y.Z": dimension}}}}
    return json.dumps({"product": {"attributes": attributes}, "terms": terms})


ECS = [
    product(0.05, usagetype="EU-Fargate-vCPU-Hours:perCPU"),
    product(0.006, usagetype="EU-Fargate-GB-Hours"),
    product(0.01, usagetype="EU-Fargate-ARM-vCPU-Hours:perCPU"),
]
EC2 = [
    product(0.107, instanceType="m6i.large"),
    product(0.0, instanceType="m6i.xlarge"),
    product(9.0, instanceType="unknown.large"),
    product(0.09, instanceType="c6i.large"),
]


def spot_history(rows):
    items = "".join(
        f"<item><instanceType>{name}</instanceType><spotPrice>{price}</spotPrice></item>"
        for name, price in rows
    )
    return (
        '<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
        f"<spotPriceHistorySet>{items}</spotPriceHistorySet><nextToken/>"
        "</DescribeSpotPriceHistoryResponse>"
    )


def sku(description, usd, usage="OnDemand", unit="h", regions=("us-central1",)):
    units, nanos = divmod(round(usd * 1e9), 10**9)
    rate = {"unitPrice": {"units": str(units), "nanos": nanos, "currencyCode": "USD"}}
    return {
        "description": description,
        "category": {"usageType": usage},
        "serviceRegions": list(regions),
        "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": [rate]}}],
    }


SKUS = [
    sku("E2 Instance Core running in Americas", 0.02),
    sku("E2 Instance Ram running in Americas", 0.003, unit="GiBy.h"),
    sku("E2 Custom Instance Core running in Americas", 0.5),
    sku("E2 Instance Core running in Frankfurt", 0.09, regions=("europe-west3",)),
    sku("Spot Preemptible E2 Instance Core running in Americas", 0.008, "Preemptible"),
    sku("Spot Preemptible E2 Instance Ram running in Americas", 0.001, "Preemptible", "GiBy.h"),
    sku("Commitment v1: E2 Cpu in Americas for 1 Year", 0.01, "Commit1Yr"),
    sku("G2 Instance Core running in Americas", 0.025),
    sku("G2 Instance Ram running in Americas", 0.003, unit="GiBy.h"),
    sku("Nvidia L4 GPU running in Americas", 0.56),
    sku("Nvidia L4 GPU attached to Spot Preemptible VMs running in Iowa", 0.2, "Preemptible"),
    sku("N2 Instance Core running in Americas", 0.03),  # and no memory
]


def aws(path, headers, body):
    """Answer as the Price List, two rows on a page, and as EC2."""
    if not headers.get("X-Amz-Target", "").endswith("GetProducts"):
        assert parse_qs(body)["Action"] == ["DescribeSpotPriceHistory"]
        return 200, spot_history([("m6i.large", 0.03), ("m6i.large", 0.05), ("m6i.large", 0.04)])
    asked = json.loads(body)
    fields = {f["Field"]: f["Value"] for f in asked["Filters"]}
    assert fields["regionCode"] == "eu-west-1"
    rows = {"AmazonECS": ECS, "AmazonEC2": EC2}[asked["ServiceCode"]]
    first = int(asked.get("NextToken", 0))
    page = {"FormatVersion": "aws_v1", "PriceList": rows[first : first + 2]}
    return 200, json.dumps(page | ({"NextToken": str(first + 2)} if rows[first + 2 :] else {}))


def google(path, headers, body):
    """Answer as the Cloud Billing Catalog, five rows on a page."""
    assert urlsplit(path).path == "/v1/services/6F81-5844-456A/skus"
    first = int(parse_qs(urlsplit(path).query).get("pageToken", ["0"])[0])
    token = str(first + 5) if SKUS[first + 5 :] else ""
    return 200, json.dumps({"skus": SKUS[first : first + 5], "nextPageToken": token})


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Return a function that reads (shape, region) -> row of a provider's table, which is a copy."""
    texts = {}
    for provider in ("aws", "gcp"):
        texts[provider] = (script.PROVIDERS / provider / "prices.csv").read_text()
        (tmp_path / provider).mkdir()
        (tmp_path / provider / "prices.csv").write_text(texts[provider])
        assert script.rewritten(texts[provider], []) == texts[provider]
    monkeypatch.setattr(script, "PROVIDERS", tmp_path)

    def rows(provider):
        text = (tmp_path / provider / "prices.csv").read_text()
        assert text.splitlines()[:7] == texts[provider].splitlines()[:7]
        return {tuple(line.split(",")[:2]): line.split(",")[2:] for line in text.splitlines()}

    return rows


def test_the_tables_are_rewritten_for_a_region(tables, monkeypatch, tmp_path):
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key")
    before = tables("aws")
    with serving(aws) as url:
        for name in ("AWS_ENDPOINT_URL_PRICING", "AWS_ENDPOINT_URL_EC2"):
            monkeypatch.setenv(name, url)
        assert script.main(["aws", "eu-west-1"]) == 0
    after = tables("aws")
    changed = {key for key in after if after[key] != before.get(key)}
    shapes = {"fargate-vcpu", "fargate-gb", "m6i.large", "c6i.large"}
    assert changed == {(shape, "eu-west-1") for shape in shapes}
    assert before.keys() == after.keys()
    assert after["fargate-gb", "eu-west-1"][0] == "0.006"
    assert after["m6i.large", "eu-west-1"][:4] == ["0.107", "0.03", "0.05", "instance"]
    # The history has no spot price: the discount of the table stays.
    (old, low, *_), (new, scaled, *_) = (t["c6i.large", "eu-west-1"] for t in (before, after))
    assert float(scaled) / float(new) == pytest.approx(float(low) / float(old), rel=1e-3)

    from google.auth.credentials import AnonymousCredentials

    monkeypatch.setattr("google.auth.default", lambda **_: (AnonymousCredentials(), "p"))
    with serving(google) as url:
        monkeypatch.setattr(script, "CATALOG", url)
        assert script.main(["gcp", "us-central1"]) == 0
    found = tables("gcp")
    price, low, *_ = map(float, found["e2-standard-4", "us-central1"][:3])
    assert price == pytest.approx(4 * 0.02 + 16 * 0.003)
    assert low == pytest.approx(4 * 0.008 + 16 * 0.001)
    price = float(found["g2-standard-24", "us-central1"][0])
    assert price == pytest.approx(24 * 0.025 + 96 * 0.003 + 2 * 0.56)
