"""Tests of routes to hosts according to the user's SSH configuration."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from torchyard_core.errors import FileProblem, Unreachable
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh.route import Route, as_host, existing_identities, route_to
from torchyard_core.fleet.ssh.ssh_config import UserConfig, config_text, host_names


@pytest.fixture(autouse=True)
def user_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def route(text: str, **host: object) -> Route:
    Path("~/.ssh/config").expanduser().write_text(text)
    return route_to(Host.model_validate({"name": "gpu-a", **host}), UserConfig().lookup)


def way(found: Route) -> list[str]:
    """Returns the hops on the route to a host."""
    return [f"{hop.user}@{hop.address}:{hop.port}" for hop in found.hops]


CONFIG = """
Host gpu-a
  HostName 10.0.0.11
  Port 2222
  User lee
  IdentityFile ~/.ssh/cluster
  IdentityFile ~/.ssh/%h-%r
  IdentitiesOnly yes
  ConnectTimeout 3
  ServerAliveInterval 7
  ServerAliveCountMax 2
Host gpu-*
  User nobody
  IdentityFile ~/.ssh/other
"""


def test_a_host_takes_its_settings_from_the_configuration(user_home: Path) -> None:
    found = route(CONFIG)

    assert (found.address, found.port, found.user) == ("10.0.0.11", 2222, "lee")
    ssh = user_home / ".ssh"
    assert found.identity_files == (str(ssh / "cluster"), str(ssh / "10.0.0.11-lee"), str(ssh / "other"))
    assert found.identities_only
    assert (found.connect_timeout_s, found.alive_interval_s, found.alive_count) == (3, 7, 2)
    assert found.key_name == "[10.0.0.11]:2222"


def test_the_fleet_file_has_the_last_word() -> None:
    found = route(CONFIG + "  ProxyJump bastion\n", port=22, user="kim", identity_file="/keys/mine", proxy_jump="none")

    assert (found.port, found.user, found.identity_files, found.via) == (22, "kim", ("/keys/mine",), None)


def test_the_fleet_files_port_and_user_are_what_tokens_stand_for() -> None:
    found = route("Host gpu-a\n  HostName %h.lab\n  ProxyCommand nc -x %r %h %p %%\n", port=2022, user="kim")

    assert found.proxy_command == "nc -x kim gpu-a.lab 2022 %"


def test_an_address_can_be_a_name_of_the_configuration() -> None:
    found = route("Host big\n  HostName 10.0.0.7\n  HostKeyAlias the-big-one\n  Port 2022\n", address="big")

    assert (found.address, found.key_name) == ("10.0.0.7", "the-big-one")


def test_patterns_and_negations_decide_who_is_meant() -> None:
    text = "Host gpu-? !gpu-b\n  User one\nMatch originalhost gpu-b\n  User two\nHost *\n  User last\n"
    users = [route(text, name=name).user for name in ("gpu-a", "gpu-b", "gpu-10")]

    assert users == ["one", "two", "last"]


# Tests of the keyword ProxyJump


def test_each_jump_goes_by_its_own_entry_to_any_depth() -> None:
    text = """
    Host gpu-a
      ProxyJump middle
    Host middle
      HostName 10.0.0.2
      User mid
      ProxyJump outer
    Host outer
      HostName 10.0.0.3
      Port 2200
      User out
      ProxyJump edge
    Host edge
      HostName 10.0.0.4
      User edge
    """
    assert way(route(text, user="lee")) == ["edge@10.0.0.4:22", "out@10.0.0.3:2200", "mid@10.0.0.2:22", "lee@gpu-a:22"]


def test_several_jumps_in_one_line_are_gone_through_in_their_order() -> None:
    text = "Host inner\n  ProxyCommand never\n  ProxyJump never\nHost *\n  User x\n"

    found = route(text, proxy_jump="door@bastion:2200,ssh://inner,[fe80::1]:23")

    assert way(found) == ["door@bastion:2200", "x@inner:22", "x@fe80::1:23", "x@gpu-a:22"]
    assert not any(hop.proxy_command for hop in found.hops)
    assert found.hops[2].place == "[fe80::1]:23"


def test_what_is_written_first_of_jump_and_command_counts() -> None:
    assert route("Host gpu-a\n ProxyJump b\n ProxyCommand nc %h %p\n").via
    found = route("Host gpu-a\n ProxyCommand nc %h %p\n ProxyJump b\n")
    assert (found.via, found.proxy_command) == (None, "nc gpu-a 22")
    assert route("Host gpu-a\n ProxyCommand none\nHost *\n ProxyCommand nc %h %p\n").proxy_command == ""


def test_the_error_of_circular_jumps_names_the_circle() -> None:
    with pytest.raises(Unreachable) as caught:
        route("Host *\n  ProxyJump bastion\n  User lee\n")

    assert "circle: gpu-a:22 through bastion:22 through bastion:22" in caught.value.message
    assert "ProxyJump none" in caught.value.hint


def test_a_jump_that_cannot_be_understood_is_named() -> None:
    with pytest.raises(Unreachable, match="the jump `a:b:c` on the way to gpu-a"):
        route("", proxy_jump="a:b:c")


def test_a_bastion_is_a_host_that_is_reached_on_the_same_way() -> None:
    found = route("Host *\n  User x\n", proxy_jump="outer:2200,kim@inner")

    as_hosts = [as_host(hop) for hop in found.hops[:-1]]

    assert [host.name for host in as_hosts] == ["outer", "inner"]
    assert [route_to(host, UserConfig().lookup) for host in as_hosts] == list(found.hops[:-1])


def test_hosts_behind_one_bastion_share_its_route() -> None:
    text = "Host gpu-*\n  ProxyJump lee@bastion\nHost other\n  ProxyJump lee@bastion:22\n"

    assert len({route(text, name=name).via for name in ("gpu-a", "gpu-b", "other")}) == 1


# Tests of the keyword Include


def test_includes_are_read_in_place(user_home: Path) -> None:
    ssh = user_home / ".ssh"
    (ssh / "config.d").mkdir()
    (ssh / "config.d" / "one").write_text("Host gpu-a\n  HostName 10.0.0.1\n")
    (ssh / "config.d" / "two").write_text("Host gpu-a\n  User two\n")
    (ssh / "config.d" / ".hidden").write_text("Host gpu-a\n  Port 9\n")

    found = route("Include config.d/*\nHost *\n  User last\n")

    assert (found.address, found.user, found.port) == ("10.0.0.1", "two", 22)


def test_what_follows_an_include_belongs_to_the_block_that_it_stands_in(user_home: Path) -> None:
    (user_home / ".ssh" / "lab").write_text("Host gpu-b\n  User lab\n")

    text = "Include lab\nPort 2022\nHost gpu-*\n  Include lab\n  User late\n"

    assert [(route(text, name=name).user, route(text, name=name).port) for name in ("gpu-a", "gpu-b")] == [
        ("late", 2022),
        ("lab", 2022),
    ]


def test_an_include_below_a_host_counts_for_that_host_only(user_home: Path) -> None:
    (user_home / ".ssh" / "lab").write_text("Port 2022\nHost gpu-* !gpu-c\n  User lab\n")

    text = "Host gpu-a gpu-c\n  Include lab\nHost *\n  User last\n"

    assert [(route(text, name=name).user, route(text, name=name).port) for name in ("gpu-a", "gpu-b", "gpu-c")] == [
        ("lab", 2022),
        ("last", 22),
        ("last", 2022),
    ]


def test_a_file_that_includes_itself_ends(user_home: Path) -> None:
    file = user_home / ".ssh" / "config"
    file.write_text("Include config\nHost gpu-a\n  User lee\n")

    assert "user lee" in config_text(file)


def test_no_file_is_no_configuration(user_home: Path) -> None:
    assert config_text(user_home / ".ssh" / "config") == ""


def test_comments_quotes_and_a_byte_order_mark_do_no_harm(user_home: Path) -> None:
    found = route('\ufeffHost=gpu-a # ours\r\n  User "lee" # me\r\n  IdentityFile "~/.ssh/my key"\r\n')

    assert (found.user, found.identity_files) == ("lee", (str(user_home / ".ssh" / "my key"),))


def test_an_invalid_line_is_reported_as_an_error_of_that_file() -> None:
    with pytest.raises(FileProblem, match=r"~/.ssh/config is malformed"):
        route("Host gpu-a\n  Port\n")
    with pytest.raises(Unreachable, match="`many` for port of gpu-a, which is not a number"):
        route("Host gpu-a\n  Port many\n")


def test_thirty_hosts_behind_two_bastions_are_resolved_in_no_time(user_home: Path) -> None:
    hosts = "".join(f"Host gpu-{number}\n  HostName 10.0.0.{number}\n  ProxyJump inner\n" for number in range(10, 40))
    (user_home / ".ssh" / "config").write_text(f"{hosts}Host inner\n  ProxyJump outer\nHost *\n  User lee\n")
    config = UserConfig()
    began = time.process_time()

    found = [route_to(Host(name=f"gpu-{number}"), config.lookup) for number in range(10, 40)]

    assert {way(route)[0] for route in found} == {"lee@outer:22"}
    assert time.process_time() - began < 1


# Tests of the choice of private keys and ssh-agent


def test_the_usual_keys_are_used_where_none_is_named(user_home: Path) -> None:
    for name in ("id_rsa", "id_ed25519", "other"):
        (user_home / ".ssh" / name).write_text("key")

    assert [path.name for path in existing_identities(route(""))] == ["id_ed25519", "id_rsa"]


def test_the_agent_can_be_another_or_none(user_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_AGENT", "/run/mine")
    agents = [route(f"Host gpu-a\n  IdentityAgent {text}\n").agent for text in ("none", "~/agent", "$MY_AGENT")]

    assert agents == ["", str(user_home / "agent"), "/run/mine"]
    assert route("").agent is None


# Tests of the host names that the window proposes


def test_the_names_that_one_can_type_after_ssh_are_found_and_patterns_are_not(user_home: Path) -> None:
    (user_home / ".ssh" / "lab").write_text('Host "gpu-b" gpu-a\n')
    (user_home / ".ssh" / "config").write_text(
        "Host gpu-a alias  # ours\nInclude lab\nHOST=bastion\nHost *.lab !not gpu-?\nHostName x\n"
    )
    text = config_text(user_home / ".ssh" / "config")
    assert host_names(text) == ["gpu-a", "alias", "gpu-b", "bastion"]


def test_a_criterion_without_its_value_names_no_host() -> None:
    assert host_names("Match originalhost gpu-a originalhost originalhost\nMatch originalhost\n") == ["originalhost"]
    assert host_names("Match originalhost gpu-a,gpu-b\n") == ["gpu-a", "gpu-b"]
