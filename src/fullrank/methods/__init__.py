"""What surrounds an objective: backbone, projector, head, target network, memory, and the forward pass to named embeddings."""

from fullrank.methods.backbones import BackboneConfig, build_backbone, feature_dim
from fullrank.methods.builders import METHODS, Builder, Encoder, method_builder
from fullrank.methods.gradients import gradient_ranks
from fullrank.methods.groups import Grouped
from fullrank.methods.joint_embedding import JointEmbedding
from fullrank.methods.method import Method
from fullrank.methods.projectors import ProjectorConfig, build_projector
from fullrank.methods.teacher_student import TeacherStudent
from fullrank.methods.training_length import TrainingLength

__all__ = [
    "METHODS",
    "BackboneConfig",
    "Builder",
    "Encoder",
    "Grouped",
    "JointEmbedding",
    "Method",
    "ProjectorConfig",
    "TeacherStudent",
    "TrainingLength",
    "build_backbone",
    "build_projector",
    "feature_dim",
    "gradient_ranks",
    "method_builder",
]
