"""SDAR's other rule:  --rule=dynamic --threshold=0.9"""
import sample
from variants.static import static


def dynamic(b, plan):
    """SDAR's other rule: what `static` says, and every other token that is more probable than plan.threshold."""
    return static(b, plan) | (b.confidence > plan.threshold)


sample.RULES["dynamic"] = dynamic
