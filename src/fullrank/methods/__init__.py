"""Methods: the networks and the state around an objective, and the forward pass from views to named embeddings.

The networks of timm are in `fullrank.methods.backbones`.
"""

from fullrank.methods.builders import METHODS, Builder, Encoder, method_builder
from fullrank.methods.config import BackboneConfig, ProjectorConfig
from fullrank.methods.directclr_projectors import Grouped
from fullrank.methods.heads import Predictor
from fullrank.methods.joint_embedding import JointEmbedding
from fullrank.methods.method import Method, StateBuffers, TrainingLength, at_least_float32
from fullrank.methods.projectors import build_projector
from fullrank.methods.teacher_student import TeacherStudent

__all__ = [
    "METHODS", "BackboneConfig", "Builder", "Encoder", "Grouped", "JointEmbedding", "Method", "Predictor",
    "ProjectorConfig", "StateBuffers", "TeacherStudent", "TrainingLength", "at_least_float32", "build_projector",
    "method_builder",
]  # fmt: skip
