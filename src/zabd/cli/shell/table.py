"""The table of the shell's commands: what `help`, completion and the shell itself go by."""

from zabd.cli.shell import quotas, session, watching, znodes
from zabd.cli.shell.command import Command, Option

_WATCH = Option("w")
_STAT = Option("s")
_VERSION = Option("v", "version")
_LIMITS = ("n", "b", "N", "B")

_ALL = (
    Command(
        "ls",
        "[path]",
        "List the children, with -R every path below; -s adds the stat, -w watches.",
        znodes.ls,
        (_STAT, _WATCH, Option("R")),
    ),
    Command("get", "path", "Print the data; -s adds the stat.", znodes.get, (_STAT, _WATCH)),
    Command("set", "path data", "Replace the data.", znodes.set_, (_STAT, _VERSION)),
    Command(
        "create",
        "path [data] [acl]",
        "Make a znode: -s sequential, -e ephemeral, -c container, -t with a TTL in ms.",
        znodes.create,
        (Option("s"), Option("e"), Option("c"), Option("t", "ttl")),
    ),
    Command("delete", "path", "Remove a znode without children.", znodes.delete, (_VERSION,)),
    Command(
        "deleteall",
        "path",
        "Remove a znode and all below it, so many at a time.",
        znodes.deleteall,
        (Option("b", "size"),),
    ),
    Command("stat", "path", "Print the stat.", znodes.stat, (_WATCH,)),
    Command("sync", "[path]", "Wait until the member has caught up with the leader.", znodes.sync),
    Command("getAcl", "path", "Print the ACL.", znodes.get_acl, (_STAT,)),
    Command(
        "setAcl",
        "path acl",
        "Replace the ACL, as in world:anyone:r,digest:ada:HASH:cdrwa; -R all below too.",
        znodes.set_acl,
        (_STAT, _VERSION, Option("R")),
    ),
    Command("getEphemerals", "[path]", "List this session's ephemerals.", znodes.get_ephemerals),
    Command(
        "getAllChildrenNumber",
        "path",
        "Count the znodes below.",
        znodes.get_all_children_number,
    ),
    Command(
        "addWatch",
        "path",
        "Watch until told otherwise: PERSISTENT, or PERSISTENT_RECURSIVE (the default).",
        watching.add_watch,
        (Option("m", "mode"),),
    ),
    Command(
        "removewatches",
        "path",
        "End watches: -c on children, -d on data, -a all; -l here if no member can be asked.",
        watching.remove_watches,
        (Option("c"), Option("d"), Option("a"), Option("l")),
    ),
    Command("printwatches", "[on|off]", "Print events or not.", watching.print_watches),
    Command("listquota", "path", "Print the quota and its usage.", quotas.list_quota),
    Command(
        "setquota",
        "path",
        "Limit the znodes (-n) or bytes (-b); -N and -B refuse what is beyond.",
        quotas.set_quota,
        tuple(Option(letter, "val") for letter in _LIMITS),
    ),
    Command(
        "delquota",
        "path",
        "End these limits, or the whole quota.",
        quotas.delete_quota,
        tuple(Option(letter) for letter in _LIMITS),
    ),
    Command("addauth", "scheme auth", "Say who you are, as in digest ada:pw.", session.add_auth),
    Command("whoami", "", "Print who the member takes you for.", session.who_am_i),
    Command(
        "config",
        "",
        "Print the ensemble's configuration, with -c where it serves clients.",
        session.config,
        (Option("c"), _WATCH, _STAT),
    ),
    Command(
        "reconfig",
        "",
        "Change the members: all of them, or some.",
        session.reconfig,
        (
            _STAT,
            _VERSION,
            Option("file", "path"),
            Option("members", "servers"),
            Option("add", "servers"),
            Option("remove", "ids"),
        ),
    ),
    Command("connect", "[hosts]", "Open a new session, here or elsewhere.", session.connect),
    Command("close", "", "Close the session, and with it its ephemerals.", session.close),
    Command("version", "", "Print the version of this program.", session.version),
    Command("history", "", "List what was typed.", session.history),
    Command("redo", "number", "Do a line of the history again.", session.redo),
    Command("help", "[command]", "List the commands, or explain one.", session.help_),
    Command("quit", "", "Leave.", session.quit_),
)

COMMANDS: dict[str, Command] = {command.name: command for command in _ALL}
