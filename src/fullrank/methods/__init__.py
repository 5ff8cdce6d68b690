"""Methods: the networks and the state around an objective, and the forward pass from views to named embeddings."""

from fullrank.methods.backbones import BackboneConfig, at_size, build_backbone, feature_dim, freeze
from fullrank.methods.builders import METHODS, Builder, Encoder, method_builder
from fullrank.methods.directclr_projectors import Grouped
from fullrank.methods.heads import Predictor
from fullrank.methods.joint_embedding import JointEmbedding
from fullrank.methods.method import Method, StateBuffers, TrainingLength, at_least_float32
from fullrank.methods.projectors import ProjectorConfig, build_projector
from fullrank.methods.teacher_student import TeacherStudent

__all__ = [
    "METHODS", "BackboneConfig", "Builder", "Encoder", "Grouped", "JointEmbedding", "Method", "Predictor",
    "ProjectorConfig", "StateBuffers", "TeacherStudent", "TrainingLength", "at_least_float32", "at_size",
    "build_backbone", "build_projector", "feature_dim", "freeze", "method_builder",
]  # fmt: skip
