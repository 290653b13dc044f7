"""The web console: what is wrong with a cluster, and what to do about it, on a few pages.

Start at ``server``: it makes the application, with the routes of ``pages`` and ``actions``. Each
request has a ``Viewer`` (``snapshot``), who asks the cluster with the rights of one user;
``access`` finds out whose. ``records`` reads what is in a partition, ``text`` makes it safe to
show. Nothing is asked unless a request needs it, and no request asks what another has just asked.

A layer above the command line: it judges a cluster by what ``oncelog status`` judges it by.
"""
