"""The verdict: what was claimed, what was counted, and whether the one bears out the other."""

from dataclasses import asdict, dataclass, field

import click

from zabd.cli.output import print_table


@dataclass(frozen=True, slots=True)
class Claim:
    """One line of the verdict. `holds` None: a figure that is shown and not judged."""

    text: str
    figure: str
    holds: bool | None
    wrong: str = ""  # what went wrong, in a sentence


@dataclass(slots=True)
class Verdict:
    """All of them."""

    claims: list[Claim] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no claim failed."""
        return all(claim.holds is not False for claim in self.claims)

    def add(self, text: str, figure: object, *, holds: bool | None, wrong: str = "") -> None:
        """Judge one claim."""
        self.claims.append(Claim(text, str(figure), holds, "" if holds is not False else wrong))

    def show(self) -> None:
        """The table, then what went wrong, one sentence each."""
        click.echo()
        print_table(
            ("VERDICT", "", ""),
            [(claim.text, claim.figure, _mark(claim)) for claim in self.claims],
        )
        click.echo()
        for claim in self.claims:
            if claim.wrong:
                click.echo(f"WRONG: {claim.wrong}")

    def as_document(self, **more: object) -> dict[str, object]:
        """The same for a program."""
        return {"passed": self.passed, **more, "claims": [asdict(claim) for claim in self.claims]}


def _mark(claim: Claim) -> str:
    return "" if claim.holds is None else "ok" if claim.holds else "FAILED"
