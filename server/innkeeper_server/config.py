"""What a host can be told, and where from.

Owns the settings: one frozen record, read once at start. Flags win over the environment
(`INNKEEPER_LISTEN`), that over the file (`innkeeper.toml`, keys as the fields below), that over
the defaults. Nothing is guessed: a wrong value, or an unknown name in the file, stops the start by
name. Other variables are left alone: Kubernetes sets INNKEEPER_PORT for a service called innkeeper.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from innkeeper_server.limits import Limits
from innkeeper_server.store import open_store, without_password

__all__ = ["ConfigError", "Settings", "load"]

PREFIX = "INNKEEPER_"
FILE_VARIABLE = "INNKEEPER_CONFIG"
DEFAULT_FILE = "innkeeper.toml"
UNIX = "unix:"

_DEFAULTS = Limits()


class ConfigError(ValueError):
    """The settings are wrong: one line a fault."""


def _listed(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _address(value: str) -> str:
    if value.startswith(UNIX):
        if not value.removeprefix(UNIX):
            raise ValueError("must name a path after unix:")
        return value
    return _tcp(value, " or unix:PATH")


def _tcp(value: str, or_else: str = "") -> str:
    host, _, port = value.rpartition(":")
    if not host or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise ValueError(f"must be HOST:PORT (an IPv6 host in brackets){or_else}")
    if not (port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise ValueError("must end in a port from 0 to 65535")
    return value


def _store(value: str) -> str:
    open_store(value)  # raises ValueError for what names no store; touches nothing yet
    return value


Modules = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]
Address = Annotated[str, AfterValidator(_address)]
TcpAddress = Annotated[str, AfterValidator(lambda value: _tcp(value))]
Seconds = Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False)]
Patience = Annotated[float, Field(ge=0, le=31_536_000, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
StateBytes = Annotated[int, Field(ge=1024, le=1 << 30)]
MessageBytes = Annotated[int, Field(ge=1 << 16, le=1 << 30)]  # any error fits into one


class Settings(BaseSettings):
    """All times are seconds. Make it with `load`, which says what is wrong in words."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=PREFIX, validate_default=True
    )

    agents: Modules = ()  # modules by name or files by path; in the environment with commas
    listen: Address = "127.0.0.1:7420"  # HOST:PORT or unix:PATH; port 0 takes a free one
    admin_listen: Address | None = None  # if set, ResidencyService is served there and only there
    metrics_listen: TcpAddress | None = None  # HTTP: /metrics and /healthz
    store: Annotated[str, AfterValidator(_store)] = "sqlite:///innkeeper.db"

    capacity: Count = _DEFAULTS.capacity
    idle_timeout: Seconds = _DEFAULTS.idle_timeout
    admission_timeout: Patience = _DEFAULTS.admission_timeout
    max_waiting: Annotated[int, Field(ge=0, le=10_000_000)] = _DEFAULTS.max_waiting
    mailbox_size: Count = _DEFAULTS.mailbox_size
    start_timeout: Seconds = _DEFAULTS.start_timeout
    start_attempts: Annotated[int, Field(ge=1, le=1000)] = _DEFAULTS.start_attempts
    stop_timeout: Seconds = _DEFAULTS.stop_timeout
    drain_timeout: Patience = _DEFAULTS.drain_timeout
    turn_timeout: Seconds = _DEFAULTS.turn_timeout
    reader_timeout: Seconds = _DEFAULTS.reader_timeout
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = _DEFAULTS.max_attempts
    backlog: Count = _DEFAULTS.backlog
    receipt_retention: Seconds = _DEFAULTS.receipt_retention
    event_log: bool = _DEFAULTS.event_log
    events_kept: Count = _DEFAULTS.events_kept
    event_retention: Seconds = _DEFAULTS.event_retention
    max_state_bytes: StateBytes = _DEFAULTS.max_state_bytes
    max_message_bytes: MessageBytes = 4 << 20
    lame_duck: Patience = 0.0  # how long a stop goes on refusing, for load balancers to notice

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "text", "json"] = "auto"  # auto: text on a terminal, else JSON
    uvloop: bool = True  # where it can be imported
    reflection: bool = True

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """No file: that is `load`'s."""
        return init_settings, env_settings

    def limits(self) -> Limits:
        """The bounds within which the host works."""
        return Limits(**{name: getattr(self, name) for name in Limits.__dataclass_fields__})


def load(config: str | Path | None = None, **flags: Any) -> Settings:
    """The settings from flags (None: not given), environment, file and defaults.

    `config` names the file; else INNKEEPER_CONFIG does; else ./innkeeper.toml is read if it is
    there. Raises ConfigError.
    """
    path, named = _file_path(config)
    given = {name: value for name, value in flags.items() if value is not None}
    kept = _read(path) if named or path.exists() else {}
    _refuse_unknown(kept, str(path))
    _refuse_unknown(given, "the call")

    class FromFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *sources: Any, **named: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            above = super().settings_customise_sources(settings_cls, *sources, **named)
            return *above, InitSettingsSource(settings_cls, init_kwargs=kept)

    FromFile.__name__ = Settings.__name__
    try:
        return FromFile(**given)
    except ValidationError as fault:
        lines = [_worded(error, given, path) for error in fault.errors()]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None


def _file_path(config: str | Path | None) -> tuple[Path, bool]:
    """Where the file is, and whether somebody named it."""
    chosen = config or os.environ.get(FILE_VARIABLE)
    return (Path(chosen).expanduser(), True) if chosen else (Path(DEFAULT_FILE), False)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as fault:
        raise ConfigError(f"{path}: cannot be read: {fault.strerror}") from None
    except ValueError as fault:  # no TOML, or no UTF-8
        raise ConfigError(f"{path}: is no TOML: {fault}") from None


def _refuse_unknown(values: dict[str, Any], where: str) -> None:
    unknown = [name for name in values if name not in Settings.model_fields]
    if unknown:
        raise ConfigError("\n".join(f"{name}: no such setting (in {where})" for name in unknown))


def _worded(error: ErrorDetails, flags: dict[str, Any], path: Path) -> str:
    name = str(error["loc"][0])
    what = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    what = what[:1].lower() + what[1:]
    shown = without_password(repr(error["input"]))
    shown = shown if len(shown) <= 80 else f"{shown[:79]}…"
    return f"{name}: {what}, not {shown} ({_whence(name, flags, path)})"


def _whence(name: str, flags: dict[str, Any], path: Path) -> str:
    if name in flags:
        return f"from --{name.replace('_', '-')}"
    variable = PREFIX + name.upper()
    if any(known.upper() == variable for known in os.environ):
        return f"from {variable}"
    return f"in {path}"
