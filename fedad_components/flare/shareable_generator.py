"""From the global model to a round's task, and from the aggregate back to the global model."""

from __future__ import annotations

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.model import ModelLearnable, ModelLearnableKey, make_model_learnable
from nvflare.app_common.abstract.shareable_generator import ShareableGenerator
from nvflare.app_common.app_constant import AppConstants

from fedad_components.flare.context import configuration
from fedad_components.tensors import apply_update, encode


class FedADShareableGenerator(ShareableGenerator):
    """Casts theta to the wire's type on the way out; adds differences to theta on the way in.

    FLARE's FullModelShareableGenerator changes the global model in place, which would lose theta^t before the
    instability is taken.
    """

    def learnable_to_shareable(self, model: ModelLearnable, fl_ctx: FLContext) -> Shareable:
        """The round's weights as a DXO; the controller adds its meta."""
        tensors = encode(model[ModelLearnableKey.WEIGHTS], configuration(fl_ctx))
        return DXO(DataKind.WEIGHTS, tensors, {}).to_shareable()

    def shareable_to_learnable(self, shareable: Shareable, fl_ctx: FLContext) -> ModelLearnable:
        """The new global model, as new tensors."""
        theta = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.WEIGHTS]
        mean = from_shareable(shareable).data
        return make_model_learnable(apply_update(mean, theta, configuration(fl_ctx)), {})
