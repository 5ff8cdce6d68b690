"""How linear networks learn under joint-embedding objectives: vector fields, closed forms and discretisations, in float64.

One theory a module, imported by its name (`from fullrank.dynamics import two_view`), since they share words: `descend`, `modes`, `alignment`.

    flow                               gradient flow and gradient descent of any loss
    two_view, two_view_modes           FroSSL's and Barlow's loss of two linear networks; mode by mode, closed forms
    stepwise, stepwise_kernel          Barlow's loss of one linear network or kernel machine, learned in steps
    pairs, trace, optimum              trace losses over pairs: free, under orthogonality constraints, and where they end
    infonce, infonce_modes             linear and ReLU networks under InfoNCE; singular values and alignment of layers
"""
