"""What did the operator ask for?

One TOML file and the environment, read once, checked whole, turned into frozen values: whoever holds a `Settings`
holds something that can work.

`values` are those frozen values and their defaults, `table` is every setting there is, `reading` reads one value, and
`loading` reads them all.
"""

from redrive.settings.loading import FILE_NAME, as_written, load, load_table, read
from redrive.settings.reading import Read
from redrive.settings.references import is_reference, resolve
from redrive.settings.table import LISTS, SECTIONS, ListSetting, Setting
from redrive.settings.urls import hide_secrets
from redrive.settings.values import (
    AlertRuleSettings,
    AlertSettings,
    BrokerSettings,
    CollectSettings,
    ConditionSettings,
    ConsumeSettings,
    EmbeddedSettings,
    HealthSettings,
    LimitSettings,
    MaintenanceSettings,
    NotifySettings,
    RecoverSettings,
    RedactSettings,
    ReplaySettings,
    RetentionSettings,
    RetrySettings,
    ServerSettings,
    ServeSettings,
    Settings,
    SourceSettings,
    StoreOptions,
)

__all__ = [
    "FILE_NAME",
    "LISTS",
    "SECTIONS",
    "AlertRuleSettings",
    "AlertSettings",
    "BrokerSettings",
    "CollectSettings",
    "ConditionSettings",
    "ConsumeSettings",
    "EmbeddedSettings",
    "HealthSettings",
    "LimitSettings",
    "ListSetting",
    "MaintenanceSettings",
    "NotifySettings",
    "Read",
    "RecoverSettings",
    "RedactSettings",
    "ReplaySettings",
    "RetentionSettings",
    "RetrySettings",
    "ServeSettings",
    "ServerSettings",
    "Setting",
    "Settings",
    "SourceSettings",
    "StoreOptions",
    "as_written",
    "hide_secrets",
    "is_reference",
    "load",
    "load_table",
    "read",
    "resolve",
]
