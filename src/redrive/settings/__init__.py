"""Settings: one TOML file and the environment, read once, checked completely, and turned into frozen values.

`values` has the frozen values and their defaults, `table` every setting, `reading` the readers of single values, and
`loading` reads file and environment.
"""

from redrive.settings.loading import FILE_NAME, as_written, load, load_table, read, variable_name
from redrive.settings.reading import Read
from redrive.settings.references import is_reference, resolve
from redrive.settings.table import LISTS, RENAMED, SECTIONS, ListSetting, Setting
from redrive.settings.urls import hide_secrets
from redrive.settings.values import (
    AlertRuleSettings,
    AlertSettings,
    BrokerSettings,
    CollectSettings,
    ConditionSettings,
    ConsumeBreakerSettings,
    ConsumeSettings,
    EmbeddedSettings,
    HealthSettings,
    LimitSettings,
    MaintenanceWindowSettings,
    NotifierSettings,
    RecoverSettings,
    RedactSettings,
    ReplaySettings,
    RetentionSettings,
    ServerSettings,
    Settings,
    SourceSettings,
    StoreOptions,
)

__all__ = [
    "FILE_NAME",
    "LISTS",
    "RENAMED",
    "SECTIONS",
    "AlertRuleSettings",
    "AlertSettings",
    "BrokerSettings",
    "CollectSettings",
    "ConditionSettings",
    "ConsumeBreakerSettings",
    "ConsumeSettings",
    "EmbeddedSettings",
    "HealthSettings",
    "LimitSettings",
    "ListSetting",
    "MaintenanceWindowSettings",
    "NotifierSettings",
    "Read",
    "RecoverSettings",
    "RedactSettings",
    "ReplaySettings",
    "RetentionSettings",
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
    "variable_name",
]
