"""Prices asked of the providers' own interfaces, which are HTTP servers of this file."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from scalable.errors import ProviderError
from scalable.providers.aws import refresh as aws
from scalable.providers.gcp import refresh as gcp
from scalable.providers.price_files import kept, path_of
from scalable.spec import ComponentSpec, DeploymentSpec

pytest.importorskip("aiobotocore")
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


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def spec(provider, region):
    parts = {"model": ComponentSpec("model", cpus=2, memory="6G")}
    options = {"region": region, "cluster_type": "ec2"}
    return DeploymentSpec("p", "t", provider, parts, options=options)


# AWS ----------------------------------------------------------------------------------------------


def product(usd, **attributes):
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd:.10f}"}}
    terms = {"OnDemand": {"X.Y": {"priceDimensions": {"X.Y.Z": dimension}}}}
    return json.dumps({"product": {"attributes": attributes}, "terms": terms})


ECS = [
    product(0.05, usagetype="EU-Fargate-vCPU-Hours:perCPU"),
    product(0.006, usagetype="EU-Fargate-GB-Hours"),
    product(0.01, usagetype="EU-Fargate-ARM-vCPU-Hours:perCPU"),
    product(0.09, usagetype="EU-Fargate-Windows-vCPU-Hours:perCPU"),
    product(0.0001, usagetype="EU-Fargate-EphemeralStorage-GB-Hours"),
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


class FakeAWS:
    """Answers of the Price List, two rows on a page, and of EC2."""

    def __init__(self, *, spot_status=200, status=200, code="AccessDeniedException"):
        self.spot_status, self.status, self.code = spot_status, status, code
        self.asked = []

    def __call__(self, path, headers, body):
        if headers.get("X-Amz-Target", "").endswith("GetProducts"):
            return self.products(json.loads(body))
        asked = parse_qs(body)
        assert asked["Action"] == ["DescribeSpotPriceHistory"]
        self.asked.append(asked)
        if self.spot_status != 200:
            error = "<Error><Code>UnauthorizedOperation</Code><Message>no</Message></Error>"
            text = f"<Response><Errors>{error}</Errors><RequestID>1</RequestID></Response>"
            return self.spot_status, text
        return 200, spot_history([("m6i.large", 0.03), ("m6i.large", 0.05), ("m6i.large", 0.04)])

    def products(self, asked):
        self.asked.append(asked)
        if self.status != 200:
            return self.status, json.dumps({"__type": self.code, "message": "you may not"})
        fields = {f["Field"]: f["Value"] for f in asked["Filters"]}
        assert fields["regionCode"] == "eu-west-1"
        rows = {"AmazonECS": ECS, "AmazonEC2": EC2}[asked["ServiceCode"]]
        first = int(asked.get("NextToken", 0))
        page = {"FormatVersion": "aws_v1", "PriceList": rows[first : first + 2]}
        return 200, json.dumps(page | ({"NextToken": str(first + 2)} if rows[first + 2 :] else {}))


@pytest.fixture
def on_aws(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    @contextmanager
    def serve(fake):
        with serving(fake) as url:
            monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", url)
            monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", url)
            yield fake

    return serve


def test_aws_tells_fargate_instances_and_spot_prices(on_aws):
    with on_aws(FakeAWS()) as fake:
        answer = aws.refresh_prices(spec("aws", "eu-west-1"))
    found = {price.shape: price for price in kept("aws", "eu-west-1")}
    assert (answer.count, answer.region, answer.note) == (4, "eu-west-1", "")
    assert set(found) == {"fargate-vcpu", "fargate-gb", "m6i.large", "c6i.large"}
    assert found["fargate-vcpu"].per_hour == 0.05
    assert found["fargate-gb"].unit == "gb"
    assert found["m6i.large"].spot_per_hour == (0.03, 0.05)
    assert found["c6i.large"].spot_per_hour is None
    assert {price.origin for price in found.values()} == {"refreshed"}
    assert [a["NextToken"] for a in fake.asked if "NextToken" in a and "ServiceCode" in a] == [
        "2", "4", "2"
    ]  # fmt: skip


def test_without_permission_for_spot_prices_the_others_are_kept(on_aws):
    with on_aws(FakeAWS(spot_status=403)):
        answer = aws.refresh_prices(spec("aws", "eu-west-1"))
    assert "spot prices could not be asked (UnauthorizedOperation)" in answer.note
    assert answer.count == 4


def test_a_refusal_of_aws_leaves_kept_prices_as_they_were(on_aws):
    with on_aws(FakeAWS()):
        aws.refresh_prices(spec("aws", "eu-west-1"))
    before = path_of("aws", "eu-west-1").read_text()
    with (
        on_aws(FakeAWS(status=400)),
        pytest.raises(ProviderError, match="AccessDeniedException: you may not") as caught,
    ):
        aws.refresh_prices(spec("aws", "eu-west-1"))
    assert "pricing:GetProducts" in caught.value.hint
    assert path_of("aws", "eu-west-1").read_text() == before


def test_without_credentials_the_error_says_how_to_give_them(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ProviderError, match="Unable to locate credentials") as caught:
        aws.refresh_prices(spec("aws", "eu-west-1"))
    assert "AWS_PROFILE" in caught.value.hint
    assert not path_of("aws", "eu-west-1").exists()


def test_an_answer_that_does_not_come_ends_in_time(on_aws, monkeypatch):
    monkeypatch.setattr(aws, "TOTAL_S", 0.2)
    hold = threading.Event()

    def silent(path, headers, body):
        hold.wait(60)
        return 500, "{}"

    try:
        with on_aws(silent):
            try:
                with pytest.raises(ProviderError, match="within 0.2 s"):
                    aws.refresh_prices(spec("aws", "eu-west-1"))
            finally:
                hold.set()
    finally:
        hold.set()


# Google -------------------------------------------------------------------------------------------


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


@pytest.fixture
def on_google(monkeypatch):
    from google.auth.credentials import AnonymousCredentials

    monkeypatch.setattr("google.auth.default", lambda **_: (AnonymousCredentials(), "p"))

    @contextmanager
    def serve(fake):
        with serving(fake) as url:
            monkeypatch.setenv(gcp.CATALOG_VARIABLE, url)
            yield

    return serve


def test_google_tells_cores_memory_and_gpus(on_google):
    def catalog(path, headers, body):
        asked = parse_qs(urlsplit(path).query)
        assert urlsplit(path).path == "/v1/services/6F81-5844-456A/skus"
        first = int(asked.get("pageToken", ["0"])[0])
        token = str(first + 5) if SKUS[first + 5 :] else ""
        return 200, json.dumps({"skus": SKUS[first : first + 5], "nextPageToken": token})

    with on_google(catalog):
        answer = gcp.refresh_prices(spec("gcp", "us-central1"))
    found = {price.shape: price for price in kept("gcp", "us-central1")}
    assert answer.count == len(found)
    assert found["e2-standard-4"].per_hour == pytest.approx(4 * 0.02 + 16 * 0.003)
    assert found["e2-standard-4"].spot_per_hour[0] == pytest.approx(4 * 0.008 + 16 * 0.001)
    assert found["g2-standard-24"].per_hour == pytest.approx(24 * 0.025 + 96 * 0.003 + 2 * 0.56)
    assert found["g2-standard-24"].spot_per_hour is None
    assert not [name for name in found if name.startswith("n2-")]


def test_a_refusal_of_google_is_told_in_its_words(on_google):
    def refusing(path, headers, body):
        text = "Cloud Billing API has not been used in project 1 before or it is disabled"
        return 403, json.dumps({"error": {"code": 403, "message": text}})

    with (
        on_google(refusing),
        pytest.raises(ProviderError, match="403: Cloud Billing API has not been used"),
    ):
        gcp.refresh_prices(spec("gcp", "us-central1"))
    assert kept("gcp", "us-central1") == []


def test_a_catalog_without_the_region_keeps_nothing(on_google):
    with (
        on_google(lambda *_: (200, json.dumps({"skus": SKUS}))),
        pytest.raises(ProviderError, match="no prices for region 'mars-north1'"),
    ):
        gcp.refresh_prices(spec("gcp", "mars-north1"))


def test_without_credentials_of_google_the_error_says_how_to_get_them(monkeypatch):
    from google.auth.exceptions import DefaultCredentialsError

    def missing(**_):
        raise DefaultCredentialsError("Your default credentials were not found.")

    monkeypatch.setattr("google.auth.default", missing)
    with pytest.raises(ProviderError, match="default credentials were not found") as caught:
        gcp.refresh_prices(spec("gcp", "us-central1"))
    assert "gcloud auth application-default login" in caught.value.hint
