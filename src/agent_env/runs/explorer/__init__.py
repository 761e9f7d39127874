"""runs/explorer"""
